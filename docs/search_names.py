"""A hook of MkDocs: the search finds names by their parts too, `masked_fill` by `fill` and `GradientError` by `error`.

The search cuts words where mkdocs.yml says, and finds those that begin with what is typed. To cut names as well would
spoil the search for whole names: `pytorch` would miss PyTorch, `save_for_backward` find all that has to do with
"backward". So names stay whole, and what they end on is one more field of each entry of the index, which is not shown.

Words of questions that a page answers in others are its tags, which count most; the code of the galleries, which has
words of every kind, is not searched.
"""

import html
import json
import re
from pathlib import Path

TAGS = {  # by the place that answers
    "coming-from-pytorch.html#in-place": "place inplace",
    "coming-from-pytorch.html#same-name-other-meaning": "transpose repeat std var max min sort",
    "coming-from-pytorch.html#training-code": "requires_grad backward zero_grad retain_graph detach no_grad optimizer",
    "errors/calling.html#save-for-backward": "save number ctx",
    "errors/calling.html#torch-habits": "clamp view squeeze unsqueeze",
    "errors/calling.html#traced-value": "float int bool item print jit",
    "guides/debugging.html#print-and-stop": "print jit value",
    "guides/modules.html#a-function-of-its-parameters": "parameters dropout seed batch norm buffers",
    "guides/training-loop.html": "optimizer optim train",
    "guides/training-loop.html#line-by-line": "freeze frozen requires_grad DataLoader cuda decay eval zero_grad",
    "guides/training.html": "optimizer optax sgd",
}
CODE = {"gallery.html", "guides/triton-gallery.html"}  # without their code
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
        if entry["location"].partition("#")[0] in CODE:
            entry["text"] = re.sub("<pre>.*?</pre>", "", entry["text"], flags=re.DOTALL)
        text = html.unescape(re.sub("<[^>]*>", " ", f"{entry['title']} {entry['text']}"))
        entry["endings"] = " ".join(endings(text))
        entry["tags"] = TAGS.get(entry["location"], "").split()
    path.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")
