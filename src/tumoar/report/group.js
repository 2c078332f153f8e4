"use strict";
(() => {
  const grid = document.getElementById("grid");
  if (!grid) return;
  const everybody = [...grid.children];
  const order = document.getElementById("order");
  const name = document.getElementById("name");
  const show = () => document.querySelector("input[name=show]:checked").value;

  function update() {
    const wanted = show(), text = name.value.trim().toLowerCase(), by = order.value;
    let shown = 0;
    for (const card of everybody) {
      const fits = (wanted === "all" || Number(card.dataset[wanted]) > 0) && card.id.toLowerCase().includes(text);
      card.hidden = !fits;
      shown += fits;
    }
    const sign = by === "number" ? 1 : -1;
    const sorted = [...everybody].sort(
      (a, b) => sign * (a.dataset[by] - b.dataset[by]) || a.dataset.number - b.dataset.number
    );
    grid.append(...sorted);
    document.getElementById("shown").textContent = `${shown} shown`;
  }
  document.getElementById("everybody").addEventListener("input", update);
  // Somebody who is looked for must not be hidden.
  addEventListener("hashchange", () => {
    const card = document.getElementById(location.hash.slice(1));
    if (card?.hidden) {
      document.querySelector("input[name=show][value=all]").checked = true;
      name.value = "";
      update();
      card.scrollIntoView();
    }
  });
})();
