"""gpt-oss: sliding and full attention in turn, attention sinks, experts merged in the file.

transformers reads the list, vLLM lets every even layer slide: a slice must satisfy both, so its layers keep their
parity (kinds say where they do not).
"""

from __future__ import annotations

from bitgate.tools.slice.family import Family, Kind, layer_count
from bitgate.tools.slice.keys import Explicit, Json
from bitgate.tools.slice.kinds import every, listed


def types(config: Json) -> list[str]:
    return listed(config, "layer_types", layer_count(config), every({}, "", 2, "full_attention", "sliding_attention"))


def kinds(config: Json) -> list[Kind]:
    return [
        (word, "moe", *(() if (word == "sliding_attention") == (layer % 2 == 0) else ("off_parity",)))
        for layer, word in enumerate(types(config))
    ]


FAMILY = Family(names=("gpt_oss",), kinds=kinds, keys=(Explicit("layer_types", types),))
