// The address is the view: all that is shown stands in it, and a choice on the page is written into it.
(function () {
  "use strict";
  const isentrope = (window.isentrope = {});
  const no_update = () => window.dash_clientside.no_update;
  // What a proxy has in front of every path of this server; empty without one.
  const rootPath = document.querySelector("meta[name=root-path]").content;
  const TYPED = "q"; // each pause would be a step
  const defaults = {}; // of the controls that choose a parameter
  let viewed = null, controls = [];

  const make = (tag, properties) => Object.assign(document.createElement(tag), properties);
  function pathOf() {
    const path = location.pathname.startsWith(rootPath) ? location.pathname.slice(rootPath.length) : location.pathname;
    return path || "/";
  }
  const run = () => (/^\/runs\/([^/]+)\/?$/.exec(pathOf()) || [])[1];
  const schemeOf = (words) => (words === "dark" || words === "light" ? words : null);
  const theme = () => schemeOf(new URLSearchParams(location.search).get("theme")) || schemeOf(localStorage.getItem("mantine-color-scheme-value"))
    || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  function view() {
    const query = new URLSearchParams(location.search);
    document.body.toggleAttribute("data-zoomed", query.has("zoom"));
    return { path: pathOf(), query: [...query], theme: theme(), origin: location.origin + rootPath };
  }
  // Writes parameters into the address; null removes one. A step is what "back" undoes.
  function change(params, isStep) {
    const query = new URLSearchParams(location.search);
    Object.entries(params).forEach(([name, value]) => {
      if (value !== null && !Array.isArray(value)) return query.set(name, value);
      query.delete(name);
      (value || []).forEach((part) => query.append(name, part));
    });
    const search = query.toString() ? "?" + query : "";
    if (search === location.search) return false;
    history[isStep ? "pushState" : "replaceState"](null, "", location.pathname + search + location.hash);
    return true;
  }
  // The page as the address has it, its controls too.
  function turn() {
    const query = new URLSearchParams(location.search);
    viewed = view();
    window.dash_clientside.set_props("view", { data: viewed });
    isentrope.ask();
    controls.forEach(({ id, value }) => {
      const written = query.has(id.param) ? query.getAll(id.param) : JSON.parse(defaults[id.param] || '[""]');
      const shown = Array.isArray(value) ? written.filter(Boolean) : written[0];
      if (String(shown) !== String(value ?? "") && isentrope.isMounted(id)) window.dash_clientside.set_props(id, { value: shown });
    });
  }
  function show(params, isStep) {
    if (change(params, isStep)) turn();
  }
  window.addEventListener("popstate", turn);
  Object.assign(isentrope, { make, rootPath, run, view, show });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    isentrope: {
      view: () => (viewed = view()),
      // A choice on the page: written into the address, from which the server draws. A control that was just mounted shows
      // what the address says, or its default, which then needs no place there.
      choose() {
        const query = new URLSearchParams(location.search);
        controls = window.dash_clientside.callback_context.inputs_list[0];
        controls.forEach(({ id: { param }, value }) => {
          const chosen = JSON.stringify([value ?? ""].flat());
          const written = query.has(param) ? JSON.stringify(query.getAll(param)) : null;
          if (!(param in defaults)) defaults[param] = written === null ? chosen : "";
          if (chosen === (written ?? defaults[param])) return;
          change({ [param]: chosen === defaults[param] || !value ? null : value, ...(param === "x" || param === "window" ? { zoom: null } : {}) }, param !== TYPED);
        });
        const before = JSON.stringify(viewed);
        viewed = view();
        isentrope.ask();
        return JSON.stringify(viewed) === before ? no_update() : viewed;
      },
      path: (shown, before) => (shown && shown.path !== before ? shown.path : no_update()),
      tab(shown, before) {
        const tab = (shown && shown.query.find(([name]) => name === "tab") || [])[1] || "overview";
        return tab !== before ? tab : no_update();
      },
      // Also called where "back" has opened it: that is no step.
      openTab(name) {
        if (name !== (new URLSearchParams(location.search).get("tab") || "overview")) show({ tab: name }, true);
        return no_update();
      },
      openRun(id) {
        if (id && run() !== encodeURIComponent(id)) location.href = rootPath + "/runs/" + encodeURIComponent(id);
        return no_update();
      },
      title(words) {
        if (words) document.title = words;
        return no_update();
      },
    },
  });
})();
