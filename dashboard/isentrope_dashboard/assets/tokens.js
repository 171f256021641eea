// Tokens in their text: one Tab stop, arrows go from token to token, a card shows the numbers of one.
(function () {
  "use strict";
  const GONE_MILLISECONDS = 250; // between two looks at whether the described token is still there
  const { make } = window.isentrope;
  let described = null;

  function describe(token) {
    const card = document.getElementById("token-card");
    described = token;
    if (!card) return;
    card.hidden = !token;
    if (!token) return;
    card.replaceChildren(...token.dataset.facts.split("\n").map((line) => {
      const fact = make("div");
      fact.append(...line.split("\t").map((textContent) => make("span", { textContent })));
      return fact;
    }));
    const within = card.parentElement.getBoundingClientRect(), place = token.getClientRects()[0];
    card.style.left = Math.max(8, Math.min(place.left - within.left, within.width - card.offsetWidth - 8)) + "px";
    card.style.top = place.bottom - within.top + 8 + "px";
  }
  document.addEventListener("focusin", (event) => {
    const token = event.target.closest("[data-facts]");
    if (token) document.querySelectorAll("[data-facts]").forEach((other) => (other.tabIndex = other === token ? 0 : -1));
    describe(token);
  });
  document.addEventListener("keydown", (event) => {
    if (!described || event.target !== described) return;
    const all = [...document.querySelectorAll("[data-facts]")], at = all.indexOf(described);
    const to = { ArrowRight: all[at + 1], ArrowLeft: all[at - 1], Home: all[0], End: all.at(-1) }[event.key];
    if (event.key === "Escape") describe(null);
    if (!to) return;
    event.preventDefault();
    to.focus();
  });
  setInterval(() => {
    if (described && !described.isConnected) describe(null);
  }, GONE_MILLISECONDS);
})();
