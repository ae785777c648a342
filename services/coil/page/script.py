"""The script of all pages: it asks for the page again and puts in what has changed. All else is made in Python.

It never turns text into markup: what it inserts comes parsed from this process, and the page's policy lets nothing in
it run. Without it everything works except that one has to press Enter and reload.
"""

SCRIPT = """
"use strict";
const PERIOD = 2000, BOUND = 8000, HASTE = 120;
const body = document.body, box = document.querySelector("input"), main = document.querySelector("main");
const said = document.querySelector(".live b"), found = document.querySelector("output");
let timer, latest = 0;

async function refresh() {
  clearTimeout(timer);
  const turn = ++latest, query = box.value.trim();
  const place = location.pathname + (query ? "?q=" + encodeURIComponent(query) : "");
  history.replaceState(null, "", place);
  try {
    const answer = await fetch(place, {headers: {Accept: "text/html"}, signal: AbortSignal.timeout(BOUND)});
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (turn === latest) show(page);
  } catch {
    if (turn === latest) stale(true);
  }
  if (turn === latest && !document.hidden) timer = setTimeout(refresh, PERIOD);
}

function stale(so) {
  body.classList.toggle("stale", so);
  const word = so ? "stale" : "live";
  if (said.textContent !== word) said.textContent = word;
}

function show(page) {
  stale(false);
  document.querySelector(".live time").replaceWith(page.querySelector(".live time"));
  found.textContent = page.querySelector("output").textContent;
  body.classList.toggle("searching", page.body.classList.contains("searching"));
  const focus = document.activeElement.id;
  const old = [...main.children], fresh = [...page.querySelector("main").children];
  if (old.map(part => part.id).join() !== fresh.map(part => part.id).join()) main.replaceChildren(...fresh);
  else fresh.forEach((part, at) => {
    if (part.outerHTML === old[at].outerHTML) return;
    mark(old[at], part);
    old[at].replaceWith(part);
  });
  if (focus && document.activeElement.id !== focus) document.getElementById(focus)?.focus({preventScroll: true});
}

// A cell whose state is another one than before draws the eye for a moment.
function mark(old, part) {
  for (const block of part.querySelectorAll(".block[id]")) {
    const before = old.querySelectorAll("#" + CSS.escape(block.id) + " .grid i");
    const after = block.querySelectorAll(".grid i");
    if (before.length !== after.length) continue;
    after.forEach((cell, at) => cell.classList.toggle("changed", cell.classList[0] !== before[at].classList[0]));
  }
}

function search(text) {
  box.value = text;
  refresh();
}

let pause;
box.addEventListener("input", () => { clearTimeout(pause); pause = setTimeout(refresh, HASTE); });
box.form.addEventListener("submit", event => { event.preventDefault(); refresh(); });
main.addEventListener("click", event => {
  const found = event.target.closest("[data-find]");
  if (!found) return;
  event.preventDefault();
  search(found.dataset.find === box.value ? "" : found.dataset.find);
});
// What a cell says stands below it, or below its grid when that is small. (The style alone knows the grid's end only.)
main.addEventListener("pointerover", event => {
  const cell = event.target.closest(".grid i"), grid = cell?.parentElement;
  if (!cell) return;
  main.style.setProperty("--tip-x", Math.max(0, Math.min(cell.offsetLeft, grid.clientWidth - 340)) + "px");
  const bottom = grid.clientHeight < 120 ? grid.clientHeight : cell.offsetTop + cell.offsetHeight;
  main.style.setProperty("--tip-y", bottom + 8 + "px");
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && box.value) search("");
  if (event.key !== "/" || event.target === box || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  box.select();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
timer = setTimeout(refresh, PERIOD);
"""
