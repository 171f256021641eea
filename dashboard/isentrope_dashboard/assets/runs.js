// The list of runs in the browser: cells drawn by the server, blocks read again every few seconds, chosen runs.
(function () {
  "use strict";
  const REFRESH_MILLISECONDS = 5000;
  const MOST_COMPARED = 12, MOST_GROUPED = 36;
  const NARROW = 800; // pixels
  const MAIN_COLUMNS = ["attention", "name", "share_lost"];
  const grid = () => document.getElementById("runs") && window.dash_ag_grid.getApi("runs");
  const address = (path) => window.isentrope.rootPath + path;

  const cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
  cells.Drawn = (params) => window.isentrope.element(params.value) ?? null;
  cells.ProjectRow = (params) => window.isentrope.element(params.data.project);

  const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
  functions.isRun = (node) => Boolean(node.data && !node.data.project);
  functions.isProject = (params) => Boolean(params.rowNode.data && params.rowNode.data.project);
  functions.leaveGrid = () => false;
  functions.openRow = (params) => {
    if (params.event.key !== "Enter") return;
    if (functions.isRun(params)) location.href = address("/runs/" + encodeURIComponent(params.data.id));
    else params.event.target.querySelector("[data-show]")?.click();
  };
  functions.fitColumns = ({ api }) => {
    const narrow = document.getElementById("runs").clientWidth < NARROW;
    api.getColumns().forEach((column) => column.getColDef().field && api.setColumnsVisible([column], !narrow || MAIN_COLUMNS.includes(column.getColId())));
  };

  functions.keepSort = ({ api }) => {
    const sorted = api.getColumnState().find((column) => column.sort);
    window.isentrope.show({ sort: sorted ? (sorted.sort === "desc" ? "-" : "") + sorted.colId : null });
  };

  // j and k go from row to row, Enter opens the run, the space bar chooses it.
  document.addEventListener("keydown", (event) => {
    const api = "jk".includes(event.key) && !event.metaKey && !event.ctrlKey && !event.altKey && !/^(INPUT|TEXTAREA)$/.test(event.target.tagName) ? grid() : null;
    if (!api || !api.getDisplayedRowCount()) return;
    const at = api.getFocusedCell()?.rowIndex, step = event.key === "j" ? 1 : -1;
    const to = Math.max(0, Math.min(api.getDisplayedRowCount() - 1, at === undefined ? 0 : at + step));
    api.ensureIndexVisible(to);
    api.setFocusedCell(to, "name");
  });

  let ticks = 0;
  let waited = false;
  setInterval(() => {
    const api = document.hidden || ["lost", "revoked"].includes(document.body.dataset.connection) ? null : grid();
    if (!api) return;
    // A block that failed to load has no answer, and the grid would wait for it before it asks for another.
    const waits = Object.values(api.getCacheBlockState()).some((block) => block.pageStatus === "loading");
    if (waits && waited) window.dash_component_api.getLayout("runs").props.getRowsRequest?.failCallback();
    waited = waits;
    api.refreshInfiniteCache();
    window.dash_clientside.set_props("news", { data: ++ticks });
  }, REFRESH_MILLISECONDS);

  const shown = (is) => (is ? {} : { visibility: "hidden" });
  let filters = null;
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    isentrope_runs: {
      choose(rows) {
        const chosen = (rows || []).map(({ id, label }) => ({ id, label }));
        const grouped = chosen.length > MOST_COMPARED, compares = chosen.length > 1 && chosen.length <= MOST_GROUPED;
        const query = chosen.map((run) => "run=" + encodeURIComponent(run.id)).join("&") + (grouped ? "&group=seed" : "");
        const words = !compares && grouped ? "Compare up to " + MOST_GROUPED + " runs" : "Compare " + chosen.length + " runs";
        return [chosen, compares ? address("/compare?" + query) : undefined, shown(chosen.length > 1), words];
      },
      some: (chosen) => shown(chosen.length > 0),
      refresh: () => (grid()?.refreshInfiniteCache(), window.dash_clientside.no_update),
      refilter(view) {
        // The grid itself asks again when it is sorted.
        const before = filters;
        filters = JSON.stringify(view.query.filter(([name]) => name !== "sort"));
        if (before !== filters) grid()?.purgeInfiniteCache();
        return window.dash_clientside.no_update;
      },
    },
  });
})();
