"""What keyboards, screen readers and weak eyes need of a page, looked up in the page itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Each script answers with a list of what is wrong.
STRUCTURE = """() => {
  const wrong = [];
  const name = (each) => `${each.tagName.toLowerCase()}#${each.id}.${each.className.baseVal ?? each.className}`;
  const isLabelled = (each) => each.ariaLabel || each.getAttribute("aria-labelledby") || each.title;
  const isTold = (each) => isLabelled(each) || each.closest("[role][aria-label], [aria-hidden=true]");
  const isShown = (each) => each.checkVisibility();
  for (const canvas of document.querySelectorAll("canvas")) {
    if (!isTold(canvas)) wrong.push(`${name(canvas)} has no role or label`);
    const tables = [...canvas.closest("section").querySelectorAll("table")];
    const isBelow = (table) => canvas.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING;
    if (!tables.some(isBelow)) wrong.push(`${name(canvas)} has no table below`);
  }
  for (const drawn of document.querySelectorAll("svg")) {
    if (!isTold(drawn)) wrong.push(`${name(drawn)} has neither label nor aria-hidden`);
  }
  for (const field of document.querySelectorAll("input, select, textarea, button, a[href]")) {
    const said = field.textContent.trim() || isLabelled(field) || field.querySelector("title");
    const isField = /INPUT|SELECT|TEXTAREA/.test(field.tagName);
    if (isField ? !field.labels.length && !isLabelled(field) : !said) wrong.push(`${name(field)} has no label`);
  }
  let before = 0;
  for (const heading of [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(isShown)) {
    const level = Number(heading.tagName[1]);
    if (level > before + 1) wrong.push(`h${level} behind h${before}: ${heading.textContent.slice(0, 40)}`);
    before = level;
  }
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  for (const table of document.querySelectorAll("table")) {
    if (!table.querySelector("th[scope]")) wrong.push(`${name(table)} has no heads`);
  }
  return [...new Set(wrong)];
}"""
CONTRAST = """(least) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below, alpha) => [0, 1, 2].map((at) => top[at] * alpha + below[at] * (1 - alpha));
  const ground = (each) => {
    if (!each) return rgba("Canvas").slice(0, 3);
    const own = rgba(getComputedStyle(each).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, ground(each.parentElement), own[3]);
  };
  const light = (colour) => {
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const wrong = new Map();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const each = texts.currentNode.parentElement;
    // What is drawn stands on shapes that are no backgrounds.
    if (!texts.currentNode.data.trim() || each.closest("svg, script, option") || !each.checkVisibility()) continue;
    let alpha = 1;
    for (let up = each; up; up = up.parentElement) alpha *= Number(getComputedStyle(up).opacity);
    const below = ground(each);
    const own = rgba(getComputedStyle(each).color);
    const shown = over(own, below, own[3] * alpha);
    const ratio = Math.max(light(shown), light(below)) / Math.min(light(shown), light(below));
    const where = `${each.tagName}.${each.className} in ${each.parentElement.closest("[class]")?.className}`;
    if (ratio < least) wrong.set(where, `${ratio.toFixed(1)}: ${texts.currentNode.data.trim().slice(0, 40)}`);
  }
  return [...wrong].map(([where, what]) => `${where} ${what}`);
}"""
FOCUS = """() => {
  const each = document.activeElement;
  const style = getComputedStyle(each);
  const isMarked = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return [each.tagName, isMarked || each === document.body];
}"""


def structure_problems(page: Page) -> list[str]:
    found: list[str] = page.evaluate(STRUCTURE)
    return found


def contrast_problems(page: Page, least: float) -> list[str]:
    """Texts whose colour is too close to what is behind them, opacity counted in."""
    found: list[str] = page.evaluate(CONTRAST, least)
    return found


def unmarked_stops(page: Page, n_stops: int) -> set[str]:
    """Kinds of elements that the key Tab reaches without anything to show it."""
    unmarked = set()
    for _ in range(n_stops):
        page.keyboard.press("Tab")
        kind, is_marked = page.evaluate(FOCUS)
        if not is_marked:
            unmarked.add(kind)
    return unmarked
