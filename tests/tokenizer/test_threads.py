"""A tokenizer never changes, so threads share it; and it runs while other threads do."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onegraph
import pytest
from support import strings
from support.turns import turns_beside

pytestmark = pytest.mark.usefixtures("all_cores")


def test_threads_share_one(smollm2: Path) -> None:
    tokenizer = onegraph.Tokenizer(smollm2)
    texts = [text for category in strings.CATEGORIES for text in strings.strings(category, 50)]
    expected = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: [tokenizer.encode(text) for text in texts], range(8)):
            assert got == expected


def test_other_threads_run_meanwhile(smollm2: Path) -> None:
    tokenizer = onegraph.Tokenizer(smollm2)
    loop = "{% for i in range(99999) %}{% if i in [] %}{% endif %}{% endfor %}"
    template = onegraph.ChatTemplate(loop)
    for slow in (lambda: tokenizer.encode("ab" * 2_000_000), lambda: template.render([])):
        assert turns_beside(slow) > 20
