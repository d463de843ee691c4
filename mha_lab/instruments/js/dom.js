// What every instrument does with the page: elements, radio buttons, keys, the still picture.

/** Keys that a control or a grid uses; JupyterLab listens on the document and would take them. */
export const CONTROL_KEYS = /^(Arrow|Page|Home|End| $|Enter)/;

/** An element with properties (or, with a dash or for `for` and `role`, attributes) and children. */
export function make(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.includes("-") || name === "for" || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** A fieldset of radio buttons: `options` maps keys to labels. */
export function radios(uid, name, legend, options, onChoose) {
  const inputs = {};
  const set = make("fieldset", {}, make("legend", {}, legend));
  for (const [key, label] of Object.entries(options)) {
    const input = inputs[key] = make("input", { type: "radio", name: `${uid}-${name}`, value: key });
    input.addEventListener("change", () => onChoose(key));
    set.append(make("label", {}, input, ` ${label}`));
  }
  return { set, inputs };
}

/** Folds the still picture of the same output away while this live view is on the page. */
export function foldStill(key) {
  const fold = () => {
    const still = key && document.querySelector(`details.mha-static[data-mha-key="${CSS.escape(key)}"]`);
    if (still) still.open = false;
    return Boolean(still);
  };
  if (!key || fold()) return () => {};
  const observer = new MutationObserver(() => fold() && observer.disconnect());
  observer.observe(document.body, { childList: true, subtree: true });
  const timer = setTimeout(() => observer.disconnect(), 10000);
  return () => { observer.disconnect(); clearTimeout(timer); };
}
