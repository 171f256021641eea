// What the server's answers show, drawn past Dash: each value at its place.
(function () {
  "use strict";
  const isentrope = window.isentrope;
  const values = new Map(); // id -> digest, property and value, and the element in which it is drawn
  const calls = {}; // id of a value -> what it is given to
  const roots = new WeakMap();

  // Components as Dash sends them. What runs reported are strings in them, which React shows as text.
  function element(node, key) {
    if (Array.isArray(node)) return node.map(element);
    if (!node || !node.props) return node;
    const { children, ...props } = node.props;
    return window.React.createElement(node.type.toLowerCase(), { key, ...props }, element(children));
  }
  function drawComponents(place, value) {
    if (!roots.has(place)) roots.set(place, window.ReactDOM.createRoot(place));
    window.ReactDOM.flushSync(() => roots.get(place).render(element(value)));
    // What people hold or type in stays theirs.
    place.querySelectorAll("[data-value]").forEach((input) => {
      if (!input.matches(input.type === "range" ? ":active" : ":focus")) input.value = input.dataset.value;
    });
  }
  function isMounted(id) {
    try {
      return Boolean(window.dash_component_api.getLayout(id));
    } catch (error) {
      return false; // Dash looks into a path that it does not have
    }
  }
  // Returns whether it is there already.
  function setDash(id, { property, value }) {
    if (property === "title") {
      document.title = value;
      return true;
    }
    if (property === "rowData") {
      const grid = document.getElementById(id) && window.dash_ag_grid.getApi(id);
      grid?.setGridOption("rowData", value);
      return Boolean(grid);
    }
    if (!isMounted(id)) return false;
    window.dash_clientside.set_props(id, { [property]: value });
    return true;
  }
  function drawValue(place, id, one) {
    if (one.property === "call") {
      if (one.place) return;
      one.place = true; // first, for it may draw
      calls[id](one.value);
    } else if (one.property) {
      if (!one.place && setDash(id, one)) one.place = true;
    } else if (place) {
      if (one.value?.layout) return isentrope.drawChart(place, id, one);
      if (typeof one.value === "boolean") place.hidden = one.value;
      else drawComponents(place, one.value);
      one.place = place;
    }
  }
  // Instead of what the browser can't draw: why. The other values go on.
  function refuse(place, error) {
    console.error(error);
    if (!place) return;
    const plot = isentrope.chartIn(place);
    if (plot) window.Plotly.purge(plot);
    roots.get(place)?.unmount();
    roots.delete(place);
    const textContent = "The browser can't draw this: " + (error?.message || error);
    place.replaceChildren(isentrope.make("div", { className: "refusal", role: "alert", textContent }));
  }
  function draw() {
    values.forEach((one, id) => {
      const place = document.getElementById(id);
      if (one.place && one.place === place) return;
      try {
        drawValue(place, id, one);
      } catch (error) {
        one.place = place || true; // it is tried again when its value changes
        refuse(place, error);
      }
    });
  }
  function redraw(id) {
    if (!values.has(id)) return;
    values.get(id).place = null;
    draw();
  }
  function chart(id, figure) {
    if (values.get(id)?.value === figure) return;
    values.set(id, { value: figure });
    draw();
  }
  Object.assign(isentrope, { values, calls, isMounted, element, refuse, draw, redraw, chart });
})();
