"""A hook of MkDocs: the search finds names by their parts too, `masked_fill` by `fill` and `GradientError` by `error`.

The search cuts words where mkdocs.yml says, and finds those that begin with what is typed. To cut names as well would
spoil the search for whole names: `pytorch` would miss PyTorch, `save_for_backward` find all that has to do with
"backward". So names stay whole, and what they end on is one more field of each entry of the index, which is not shown.
"""

import html
import json
import re
from pathlib import Path

PART = re.compile(r"(?<=[._])(?=[^\W_])|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def endings(text):
    """Return the suffixes of the dotted names in a text: `lax.scan` and `scan` of `jax.lax.scan`."""
    names = set(re.findall(r"[^\W\d][\w.]*\w", text))
    return sorted({name[part.start() :] for name in names for part in PART.finditer(name)})


def on_post_build(config):
    path = Path(config["site_dir"], "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    index["config"]["fields"]["endings"] = {"boost": 1.0}
    for entry in index["docs"]:
        text = html.unescape(re.sub("<[^>]*>", " ", f"{entry['title']} {entry['text']}"))
        entry["endings"] = " ".join(endings(text))
    path.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")
