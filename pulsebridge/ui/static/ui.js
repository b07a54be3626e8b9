// Keeps a page current without a reload: it replaces the parts that have changed, marked data-live and data-part.
"use strict";

const interval = Number(document.body.dataset.refresh) * 1000;

async function parsed(url) {
  const answer = await fetch(url, { headers: { "X-Part": "1" } });
  return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
}

function replace(old, html) {
  // A choice or a focus inside would be lost.
  const used = old.contains(document.activeElement) || old.querySelector("input:checked");
  if (old.innerHTML !== html && !used) old.innerHTML = html;
}

async function parts() {
  for (const part of document.querySelectorAll("[data-part]")) {
    const fresh = await parsed(part.dataset.part);
    if (fresh) replace(part, fresh.body.innerHTML);
  }
}

async function live() {
  const fresh = await parsed(location.href);
  for (const old of document.querySelectorAll("[data-live]")) {
    const part = fresh && fresh.querySelector(`[data-live="${old.dataset.live}"]`);
    if (part) replace(old, part.innerHTML);
  }
}

async function refresh() {
  try {
    if (!document.hidden) {
      await live();
      await parts();
    }
  } catch (error) {
    console.debug("the server does not answer", error);
  }
  setTimeout(refresh, interval);
}

parts().catch(() => {});
setTimeout(refresh, interval);
