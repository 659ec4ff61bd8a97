"""Look whether all pages of the built site fit the windows of a phone and of a desk: python tools/check_site.py FOLDER.

A page fits where nothing in it is wider than the window, so that only tables and code scroll, within themselves. A
headless Chromium shows every page in a frame; without one nothing is checked, and a line says so.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (390, 1400)
SECONDS = 900

SCRIPT = """<!doctype html><body><script>
const found = [];
async function width(page, size) {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; width: ${size}px; height: 900px`;
  const loaded = new Promise(done => { frame.onload = done; setTimeout(done, 10000); });
  frame.src = page;
  document.body.append(frame);
  await loaded;
  const root = frame.contentDocument.documentElement;
  const wide = [...root.querySelectorAll("main *")].find(x => x.getBoundingClientRect().right > size + 1
    && ![...ancestors(x)].some(y => getComputedStyle(y).overflowX != "visible"));
  if (root.scrollWidth > size) found.push([page, size, root.scrollWidth, wide ? wide.outerHTML.slice(0, 90) : ""]);
  frame.remove();
}
function* ancestors(x) { for (let y = x.parentElement; y; y = y.parentElement) yield y; }
(async () => {
  for (const page of PAGES) for (const size of SIZES) await width(page, size);
  await fetch("/found", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


class Site(SimpleHTTPRequestHandler):
    """The site, the page that looks at its pages, and the place where that page tells what it found."""

    script = ""
    found: list[list[object]] | None = None
    told = Event()

    def do_GET(self) -> None:
        """Send a file, or the page that looks at all."""
        if self.path != "/look":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.script.encode())

    def do_POST(self) -> None:
        """Take what was found."""
        type(self).found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.told.set()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main(folder: Path) -> int:
    """Print the pages that are wider than the window; 1 if there are any."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        print(f"check_site: none of {', '.join(NAMES)} is there: the widths of pages are not checked")
        return 0
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    Site.script = SCRIPT.replace("PAGES", json.dumps(pages)).replace("SIZES", json.dumps(WIDTHS))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/look"
    offline = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    with tempfile.TemporaryDirectory() as profile:
        words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", offline]
        shown = subprocess.Popen(
            [*words, "--remote-debugging-port=0", address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        ended = Site.told.wait(SECONDS)
        shown.terminate()
        shown.wait()
    server.shutdown()
    server.server_close()
    if not ended or Site.found is None:
        print(f"check_site: {browser} did not look at all {len(pages)} pages in {SECONDS} s")
        return 1
    for page, size, width, wide in Site.found:
        print(f"{page}: {width} pixels wide in a window of {size}: {wide}")
    print(f"check_site: {len(pages)} pages at {' and '.join(map(str, WIDTHS))} pixels, {len(Site.found)} too wide")
    return 1 if Site.found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
