"""A real JupyterLab, and a real Chromium looking at it."""
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

TOKEN = "learner"
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory):
    """jupyter(folder) serves JupyterLab from a folder and gives its address."""
    servers = []

    def serve(folder: Path, *options: str) -> str:
        home = tmp_path_factory.mktemp("jupyter")
        for name, value in SETTINGS.items():
            plugin, part = name.split("/")
            file = home / "config" / "lab" / "user-settings" / "@jupyterlab" / plugin / f"{part}.jupyterlab-settings"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps(value))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        env = {**os.environ, "JUPYTER_CONFIG_DIR": str(home / "config"), "JUPYTER_DATA_DIR": str(home / "data"),
               "JUPYTER_RUNTIME_DIR": str(home / "run"), "IPYTHONDIR": str(home / "ipython"),
               "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        log = open(home / "log", "w")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
             f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True", *options],
            cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT)
        servers.append((process, log))
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{address}/api?token={TOKEN}", timeout=2)
                return address
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"JupyterLab did not start:\n{(home / 'log').read_text()[-2000:]}")
                time.sleep(0.2)

    yield serve
    for process, log in servers:
        process.terminate()
        process.wait(20)
        log.close()


@pytest.fixture
def page(chromium, tmp_path):
    """A page that fails the test when the console had an error of ours."""
    errors = []
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" and "mha" in m.text.lower() else None)
    yield page
    context.close()
    assert errors == []


@pytest.fixture
def open_notebook(page):
    """`with open_notebook(address, name):` opens a notebook and waits for its kernel, which is shut down after."""
    return partial(_notebook, page)


@contextmanager
def _notebook(page, address: str, name: str):
    page.goto(f"{address}/lab/tree/{name}?token={TOKEN}&reset")
    page.wait_for_function("window.jupyterapp !== undefined")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_function(
        "() => { const p = jupyterapp.shell.currentWidget;"
        " return p && p.sessionContext && p.sessionContext.session && p.sessionContext.session.kernel"
        " && p.sessionContext.session.kernel.status === 'idle' }")
    yield page
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
