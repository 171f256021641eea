// AG Grid is a quarter of all scripts, so it is loaded where a page first shows a grid. Dash knows this stand-in alone, and mounts
// no grid twice.
(function () {
  "use strict";
  const { make } = window.isentrope;
  let loading = null, RealGrid = null;

  async function load() {
    const src = document.querySelector("meta[name=grid-script]").content;
    try {
      await new Promise((onload, onerror) => document.head.append(make("script", { src, onload, onerror })));
      RealGrid = window.dash_ag_grid.AgGrid;
      window.dash_ag_grid = { ...window.dash_ag_grid, AgGrid };
    } catch (error) {
      loading = null; // the next grid tries again
    }
  }
  function AgGrid(props) {
    const { createElement, useEffect, useState } = window.React, [isLoaded, setLoaded] = useState(Boolean(RealGrid));
    useEffect(() => {
      loading ||= load();
      loading.then(() => setLoaded(Boolean(RealGrid)));
    }, []);
    return isLoaded ? createElement(RealGrid, props) : null;
  }
  AgGrid.dashRenderType = true;
  window.dash_ag_grid = { AgGrid, getApi: () => null };
  const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
  functions.isentropeTheme = {
    fontFamily: "Inter, sans-serif", fontSize: 12, headerFontSize: 11, headerFontWeight: 500, wrapperBorder: false,
    wrapperBorderRadius: 0, backgroundColor: "transparent", foregroundColor: "var(--text)", headerBackgroundColor: "transparent",
    headerTextColor: "var(--dim)", borderColor: "var(--line)", rowBorder: { color: "var(--line)" }, rowHoverColor: "var(--hover)",
    selectedRowBackgroundColor: "color-mix(in srgb, var(--iris) 9%, transparent)", accentColor: "var(--iris)",
    headerColumnResizeHandleColor: "transparent", cellHorizontalPadding: 8, spacing: 6, columnBorder: false,
    checkboxBorderRadius: 4, iconSize: 14, tooltipBackgroundColor: "var(--card)", tooltipTextColor: "var(--text)",
  };
})();
