"""lm-eval's scores through the service are those that our engine gives in-process.

Two small tasks of our own, in `lm_eval/`: twenty questions with four answers by log-likelihood, ten sentences to be ended. lm-eval finds
out by itself that the server tokenises (`/tokenizer_info`, `/tokenize`), so it needs no tokenizer, and no network.
A server that answers `echo` without the prompt's log probabilities is scored at chance, without a word: hence each value is compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.conftest import load_engine_now
from tests.clients.conftest import Clients, Served
from tripower.backends.model_file import make_text_layer, open_model
from tripower.runtime.engine import TextLayer

pytestmark = pytest.mark.long
TASKS = Path(__file__).parent / "lm_eval"
TOLERANCE = 1e-4
"""Of a sum of log probabilities, in nats."""
TOKENS_MAX = 8
"""Of `max_gen_toks` in `endings.yaml`."""


@attrs.frozen
class Evaluation:
    """What lm-eval wrote: the scores of both tasks, and every question with its answer."""

    scores: dict[str, dict[str, Any]]
    capitals: list[dict[str, Any]]
    endings: list[dict[str, Any]]


@attrs.frozen
class Direct:
    """Our engine without a service."""

    engine: Any
    text: TextLayer

    def log_probabilities(self, tokens: list[int]) -> NDArray[np.float64]:
        """Of every token that may follow each of these, float64 [tokens, vocabulary]."""
        self.engine.open_sequence(1)
        logits = self.engine.logits(1, tokens).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        found: NDArray[np.float64] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return found

    def loglikelihood(self, context: str, continuation: str) -> tuple[float, bool]:
        """The sum over the continuation's tokens, and whether each is the most likely one."""
        whole = self.text.tokenize(context + continuation, add_special=False)
        first = len(self.text.tokenize(context, add_special=False))
        found = self.log_probabilities(whole)[first - 1 : -1]
        tokens = np.array(whole[first:])
        return float(found[np.arange(len(tokens)), tokens].sum()), bool((found.argmax(axis=1) == tokens).all())

    def greedy(self, prompt: str, stops: list[str]) -> str:
        """The most likely text up to one of `stops`."""
        tokens = self.text.tokenize(prompt, add_special=False)
        generated: list[int] = []
        while len(generated) < TOKENS_MAX:
            best = int(self.log_probabilities(tokens + generated)[-1].argmax())
            if best in self.text.end_tokens:
                break
            generated.append(best)
        text = b"".join(map(self.text.piece, generated)).decode()
        return min((text.partition(stop)[0] for stop in stops), key=len)


@pytest.fixture(scope="module")
def direct(smollm2_path: Path) -> Iterator[Direct]:
    engine = load_engine_now(smollm2_path, context=128, sequences_max=2)
    with open_model(smollm2_path) as file:
        text = make_text_layer(file)
    yield Direct(engine, text)
    engine.close()


@pytest.fixture(scope="module")
def evaluation(clients: Clients, served: Served) -> Evaluation:
    """One run of lm-eval, with prompts in lists of eight."""
    out = clients.home / "lm_eval"
    model = f"base_url={served.url}/v1/completions,model=smollm2,auth_token={served.key}"
    command = ("-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model, "--output_path", str(out))
    tasks = (
        "--batch_size",
        "8",
        "--tasks",
        "tripower_capitals,tripower_endings",
        "--include_path",
        str(TASKS),
        "--log_samples",
    )
    finished = clients.run(*command, *tasks, variables={"OPENAI_API_KEY": served.key}, folder=TASKS)
    warnings = [line for line in finished.stderr.splitlines() if "WARNING" in line]
    assert finished.returncode == 0, (warnings, finished.stderr[-2000:])
    assert "Auto-detected remote tokenizer support" in finished.stderr

    def lines(task: str) -> list[dict[str, Any]]:
        [path] = out.rglob(f"samples_tripower_{task}_*.jsonl")
        return sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: sample["doc_id"])

    [results] = out.rglob("results_*.json")
    return Evaluation(json.loads(results.read_text())["results"], lines("capitals"), lines("endings"))


def test_log_likelihoods_and_the_score_are_those_of_the_engine(evaluation: Evaluation, direct: Direct) -> None:
    right = 0
    for sample in evaluation.capitals:
        expected = [direct.loglikelihood(asked["arg_0"], asked["arg_1"]) for asked in sample["arguments"].values()]
        found = [(float(value), greedy == "True") for [[value, greedy]] in sample["resps"]]
        assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=TOLERANCE)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
        right += int(np.argmax([value for value, _ in expected]) == sample["doc"]["answer"])
    assert len(evaluation.capitals) == 20
    assert evaluation.scores["tripower_capitals"]["acc,none"] == pytest.approx(right / 20)
    assert 5 < right < 20  # neither at chance nor too easy to tell


def test_greedy_texts_and_the_score_are_those_of_the_engine(evaluation: Evaluation, direct: Direct) -> None:
    expected = [
        direct.greedy(sample["arguments"]["gen_args_0"]["arg_0"], sample["arguments"]["gen_args_0"]["arg_1"]["until"])
        for sample in evaluation.endings
    ]
    assert [sample["resps"][0][0] for sample in evaluation.endings] == expected
    right = sum(text == sample["target"] for text, sample in zip(expected, evaluation.endings, strict=True))
    assert len(expected) == 10 and right > 0
    assert evaluation.scores["tripower_endings"]["exact_match,none"] == pytest.approx(right / 10)
