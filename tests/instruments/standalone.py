"""A page that runs an instrument as anywidget would, over a model of four methods, without any notebook."""

import json

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>instrument</title>
<style>{css}</style><style>body{{margin:12px;background:var(--jp-layout-color1,#fff)}} {theme}</style></head>
<body data-jp-theme-light="{light}"><main><h1 hidden>An instrument</h1><div id="here"></div>{after}</main>
<script type="module">
const values = {state}, listeners = {{}};
window.saved = [];
window.model = {{
  get: (name) => values[name],
  set: (name, value) => {{ values[name] = value; (listeners[`change:${{name}}`] ?? []).forEach((f) => f()); }},
  on: (event, listener) => {{ (listeners[event] ??= []).push(listener); }},
  save_changes: () => window.saved.push(structuredClone(values)),
}};
window.moduleBlob = new Blob([{esm}], {{ type: "text/javascript" }});
const {{ default: widget }} = await import(URL.createObjectURL(moduleBlob));
window.stop = widget.render({{ model, el: document.getElementById("here") }});
window.ready = true;
</script></body></html>"""

# A few of JupyterLab's theme variables, as its dark theme sets them.
DARK = """:root{--jp-layout-color0:#111;--jp-layout-color1:#212121;--jp-layout-color2:#424242;
--jp-border-color1:#616161;--jp-ui-font-color1:rgba(255,255,255,.87)}"""


def page(view, dark: bool = False, after: str = "") -> str:
    state = {name: getattr(view, name) for name in view.keys
             if not name.startswith("_") and name not in ("layout", "tabbable", "tooltip")}
    return PAGE.format(css=view._css, esm=json.dumps(str(view._esm)).replace("</", "<\\/"),
                       state=json.dumps(state).replace("</", "<\\/"), theme=DARK if dark else "",
                       light=str(not dark).lower(), after=after)
