// What a click or a choice on any page does: it opens, copies, shares, acknowledges, signs out.
(function () {
  "use strict";
  const ANSWERED_FOR = 1000; // the server keeps an answer so long for other tabs
  const SAID_MILLISECONDS = 2000;
  const { make, rootPath, run, show, forget } = window.isentrope;

  // By the selector of what was clicked, or of what has it inside.
  const ACTIONS = {
    "[data-show]": (place, event) => {
      const shown = JSON.parse(place.dataset.show);
      if (shown.tab) event.preventDefault();
      show(shown, "tab" in shown);
    },
    "[data-tab]": (place, event) => {
      event.preventDefault();
      show({ tab: place.dataset.tab }, true);
    },
    "#sign-out": () => fetch(rootPath + "/logout", { method: "POST" }).then(() => (location.href = rootPath + "/")),
    // Mantine has switched the document by then.
    "#scheme": () => setTimeout(() => show({ theme: document.documentElement.getAttribute("data-mantine-color-scheme") }), 50),
    "#copy-link": (place) => copy(location.href).then(() => say(place, "Link copied"), () => say(place, "Not copied: take it from the address bar")),
    "#share-run": (place) => {
      place.closest("details").open = false;
      share(document.getElementById("copy-link"));
    },
    "[data-acknowledge]": acknowledge,
    ".show-checks": () => (document.querySelector("#checks details").open = true),
    "[data-close]": (place) => place.closest("section").querySelector("button[aria-label=Close]").click(),
  };
  function closeMenus({ target }) {
    document.querySelectorAll("details.menu[open], #checks [open]").forEach((menu) => {
      if (!menu.contains(target)) menu.open = false;
    });
  }
  document.addEventListener("keydown", ({ key }) => key === "Escape" && closeMenus({}));
  document.addEventListener("click", (event) => {
    closeMenus(event);
    Object.entries(ACTIONS).forEach(([selector, act]) => {
      const place = event.target.closest(selector);
      if (place) act(place, event);
    });
  });
  document.addEventListener("change", ({ target }) => {
    if (target.dataset.param && target.value) show({ [target.dataset.param]: target.value });
  });

  // Others see this view, of this run alone.
  async function share(place) {
    const made = await fetch(rootPath + "/api/v1/runs/" + run() + "/link", { method: "POST" });
    if (!made.ok) return say(place, "No link: " + (await made.json()).error.message);
    const link = location.origin + rootPath + "/?token=" + encodeURIComponent((await made.json()).token) + location.search.replace("?", "&");
    copy(link).then(() => say(place, "Link copied: it shows this run alone, until you revoke it on the page Access"), () => window.prompt("The link", link));
  }
  async function acknowledge(button) {
    const answer = await fetch(rootPath + "/api/v1/runs/" + run() + "/alerts/" + button.dataset.acknowledge + "/acknowledgement", { method: "PUT" });
    if (!answer.ok) return say(button, (await answer.json()).error.message);
    setTimeout(forget, ANSWERED_FOR);
  }
  // Without TLS, browsers give pages of other machines no clipboard.
  async function copy(words) {
    if (navigator.clipboard) return navigator.clipboard.writeText(words);
    const field = document.body.appendChild(make("textarea", { value: words }));
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    if (!isCopied) throw new Error("refused");
  }
  function say(place, words) {
    const bubble = make("span", { className: "said", textContent: words, role: "status" });
    place.parentElement.append(bubble);
    setTimeout(() => bubble.remove(), SAID_MILLISECONDS);
  }
})();
