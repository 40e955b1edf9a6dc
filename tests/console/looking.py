"""What tests of the console's page look at: what it says, its contrast, and pictures.

``MILLWHEEL_PICTURES`` names a folder for pictures of what the tests saw.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.console.browser import Page

_PICTURES = os.environ.get("MILLWHEEL_PICTURES", "")

CONTRAST = """
(() => {
  const channel = (one) => (one /= 255, one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const bad = [];
  for (const element of document.querySelectorAll("body *")) {
    const says = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!says || element.closest("noscript") || !element.getClientRects().length) continue;
    const [one, other] = [light(rgb(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    if ((one + 0.05) / (other + 0.05) < 4.5) bad.push(element.outerHTML.slice(0, 120));
  }
  return bad;
})()
"""
"""The elements whose text has less contrast than WCAG AA asks for."""


async def picture(page: Page, name: str) -> None:
    """Keep a picture, if there is a folder for pictures."""
    if _PICTURES:
        await page.picture(Path(_PICTURES, f"{name}.png"))


def says(text: str) -> str:
    """The JavaScript condition that the view has a text."""
    return f"document.querySelector('main')?.innerText.includes({text!r})"
