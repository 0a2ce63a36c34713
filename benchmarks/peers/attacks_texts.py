"""Token sequences behind one gradient of Hugging Face's models. `python -m benchmarks attacks_texts`.

Models with random weights as transformers makes them, rows of random tokens filled up to one length, one step of plain
gradient descent in single precision. The attacks are those of the audit of torch loops. A share of 1 is every row,
word for word and with its length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from benchmarks.rows import Row, row, write
from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.model_inputs import InputLayout
from securefed._auditing.training.observed_runs import ObservedChange
from securefed._auditing.training.step_probe import probe_step
from securefed._auditing.training.text_attacks import read_tokens, recover_sequences
from securefed._auditing.training.token_inputs import token_inputs
from securefed._auditing.training.training_secrets import TrainingSecrets
from securefed.attacks import views
from securefed.attacks._generic import TimeBudget
from securefed.errors import SecureFedError

SEEDS, BATCHES = range(10), (1, 2, 4, 8)
PADDING, TOKENS, LENGTH, SHORTEST, WIDTH, KNOWN, CLASSES = 0, 1000, 16, 4, 128, 60, 3
_LLAMA: Final = {
    "vocab_size": TOKENS, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 2 * WIDTH, "max_position_embeddings": LENGTH,
    "pad_token_id": PADDING,
}  # fmt: skip
_GPT2: Final = {
    "vocab_size": TOKENS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "pad_token_id": PADDING,
    "bos_token_id": 1, "eos_token_id": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
_BERT: Final = {
    "vocab_size": TOKENS, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 2 * WIDTH, "max_position_embeddings": LENGTH, "num_labels": CLASSES,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model, and whether it predicts each next token in place of a class of the row."""

    make: Callable[[], nn.Module]
    next_token: bool

    def rows(self, count: int) -> tuple[dict[str, Tensor], Tensor]:
        """Draw rows: tokens and mask, then classes or the tokens to predict."""
        tokens = torch.randint(1, TOKENS, (count, LENGTH))
        mask = (torch.arange(LENGTH) < torch.randint(SHORTEST, LENGTH + 1, (count, 1))).long()
        targets = torch.where(mask > 0, tokens, -100) if self.next_token else torch.randint(0, CLASSES, (count,))
        return {"input_ids": torch.where(mask > 0, tokens, PADDING), "attention_mask": mask}, targets

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        """Return the loss that the model computes itself from its scores."""
        if self.next_token:
            return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), y[:, 1:].flatten())
        return nn.functional.cross_entropy(scores, y)


CASES: Final[dict[str, Case]] = {
    "Llama, classes": Case(lambda: LlamaForSequenceClassification(LlamaConfig(**_LLAMA, num_labels=CLASSES)), False),
    "Llama, next token": Case(lambda: LlamaForCausalLM(LlamaConfig(**_LLAMA)), True),
    "GPT-2, classes": Case(lambda: GPT2ForSequenceClassification(GPT2Config(**_GPT2, num_labels=CLASSES)), False),
    "GPT-2, next token": Case(lambda: GPT2LMHeadModel(GPT2Config(**_GPT2)), True),
    "BERT, classes": Case(lambda: BertForSequenceClassification(BertConfig(**_BERT)), False),
}


def descend(model: nn.Module, x: Mapping[str, Tensor], y: Tensor) -> None:
    """Make one step of gradient descent on all rows."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    optimiser.zero_grad()
    loss: Any = model(**x, labels=y).loss
    loss.backward()
    optimiser.step()


def measured(case: Case, count: int, seed: int) -> tuple[float, float]:
    """Return the share of the rows that are recovered, and whether the tokens that occur are told exactly."""
    torch.manual_seed(seed)
    model, (x, y), (known, targets) = case.make(), case.rows(count), case.rows(KNOWN)
    layout = InputLayout.of(x)
    training = TorchTraining(model, case.loss, descend, layout=layout, named_scores=True)
    own, prior = TrainedRows(layout.pack(x), y), TrainedRows(layout.pack(known), targets)
    text = token_inputs(training, TrainedRows.joined([own, prior]))
    facts = probe_step(training, training.state, prior.part(slice(0, count)), 0)
    change = training.change(training.state, own, 2)
    seen = ObservedChange(views.SERVER_VIEW, seed, 0, (0,), (1.0,), training.state, change, None)
    inputs = AttackInputs(training, seen, (count,), prior, CLASSES, text, facts, TimeBudget.of(1e4))
    secrets = TrainingSecrets([own], 0, seed, (), text)

    def share() -> float:
        return secrets.recovered_share(recover_sequences(inputs).tokens)

    def exact() -> float:
        return float(np.array_equal(read_tokens(inputs)[0].value, secrets.tokens(own)))

    return _or_nothing(share), _or_nothing(exact)


def _or_nothing(attack: Callable[[], float]) -> float:
    """Return what an attack finds; 0 where it says that it does not apply."""
    try:
        return attack()
    except SecureFedError:
        return 0.0


def main() -> None:
    """Measure and write `results/attacks_texts.json`."""
    out: list[Row] = []
    for name, case in CASES.items():
        for count in BATCHES:
            shares, exact = zip(*map(partial(measured, case, count), SEEDS), strict=True)
            setting = f"{name}, one gradient of {count} texts"
            out += [
                row("share of the rows recovered", setting, shares, "share"),
                Row("all rows recovered", setting, sum(s == 1 for s in shares), "seeds", len(shares), (0, len(shares))),
                Row("tokens told exactly", setting, sum(exact), "seeds", len(exact), (0, len(exact))),
            ]
            print(f"{setting:50} all rows on {sum(s == 1 for s in shares)}, tokens on {sum(exact):.0f} of {len(exact)}")
    print(write("attacks_texts", out))


if __name__ == "__main__":
    main()
