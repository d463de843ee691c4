// node agreement.mjs MODULE CALLS: prints, as JSON, what the module's functions answer to the calls.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [, , module, calls] = process.argv;
const functions = await import(pathToFileURL(module));
const asked = JSON.parse(readFileSync(calls, "utf8"));
process.stdout.write(JSON.stringify(asked.map(({ call, with: given }) => functions[call](...given) ?? null)));
