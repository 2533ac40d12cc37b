// Ask the search of a built site, by Material's own code: node tests/search.js SITE QUERY...
const fs = require("fs"), path = require("path"), vm = require("vm");
const [site, ...queries] = process.argv.slice(2);
const workers = path.join(site, "assets/javascripts/workers");
const code = fs.readFileSync(path.join(workers, fs.readdirSync(workers).find((name) => name.endsWith(".min.js"))), "utf8");
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
index.options = {suggest: false};
let receive, answer;
Object.assign(globalThis, {self: globalThis, location: {href: "http://localhost/"}, importScripts() {}});
globalThis.addEventListener = (type, listener) => { receive = listener; };
globalThis.postMessage = (message) => answer(message.data);
vm.runInThisContext(code);
const ask = (type, data) => new Promise((resolve) => { answer = resolve; receive({data: {type, data}}); });
(async () => {
  await ask(0, index);
  const found = {};
  for (const query of queries) found[query] = (await ask(2, query)).items.map((page) => page[0].location);
  console.log(JSON.stringify(found));
})();
