// The page: a review, or the list of results from which reviews and new cases begin.

import { takeToken, get } from "./talk.js";
import { closeReview, openReview } from "./review.js";
import { closeList, openList } from "./app.js";

const find = (id) => document.getElementById(id);

export function say(text, good = false) {
  const box = find("message");
  box.textContent = text;
  box.classList.toggle("good", good);
  box.hidden = !text;
}

async function show(about) {
  const key = location.hash.startsWith("#/review/") ? location.hash.slice(9) : about.review;
  closeReview();
  closeList();
  say("");
  find("home").hidden = !(about.app && key);
  find("review").hidden = !key;
  find("begin").hidden = Boolean(key);
  try {
    if (key) await openReview(key, say);
    else await openList(about, say);
  } catch (error) {
    say(error.message);
  }
}

if (takeToken()) {
  try {
    const about = await get("/api");
    addEventListener("hashchange", () => {
      if (takeToken()) show(about);
    });
    await show(about);
  } catch (error) {
    say(error.message);
  }
} else {
  say("Open the address that tumoar printed in the terminal: this page does not have its token.");
}
