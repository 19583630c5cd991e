"""What is forced and written: scripts, prompts, synthesis."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.assets import standard_prompts
from mlxcel.distill.corpus import Corpus
from mlxcel.distill.rows import evaluation_rows, training_rows
from mlxcel.distill.script import (
    ANSWER,
    FORCED,
    OVER,
    USER,
    ChatFormat,
    Scripts,
    read_prompts,
)
from mlxcel.distill.seeds import HELD_OUT, training_prompts
from mlxcel.distill.synthesis import Text, row_seeds, synthesise
from mlxcel.errors import ConfigError
from mlxcel.runtime.noise import gumbel, noise_keys
from tests.distill.support import (
    ANSWER_MARK,
    BEGIN,
    END,
    USER_MARK,
    ChatTokenizer,
    chat_model,
    options,
)
from tests.support import tiny


def written(tmp_path: Path, rows: int = 12, batch: int = 0) -> Text:
    model = chat_model()
    plan = training_rows(
        model.tokenizer, options(tmp_path), batch=batch, rows=rows, vocab=tiny.VOCAB
    )
    return synthesise(
        model.target, plan.scripts, length=48, seeds=row_seeds(0, batch, rows),
        temperatures=plan.temperatures, ends=[END],
    )  # fmt: skip


def test_the_template_is_taken_apart() -> None:
    form = ChatFormat.of(ChatTokenizer())
    assert form.opening == [BEGIN, USER_MARK]
    assert form.to_answer == [END, ANSWER_MARK]
    assert form.to_user == [END, USER_MARK]
    plain = ChatFormat.of(tiny.LetterTokenizer(eos=(7,)))
    assert (plain.opening, plain.chat, plain.ends) == ([7], False, [7])


def test_standard_and_held_out_prompts_are_not_trained_on() -> None:
    prompts = training_prompts(0)
    assert len(prompts) == 30_000
    assert len(set(prompts)) > 20_000
    assert not set(prompts) & ({*HELD_OUT} | {*standard_prompts().values()})
    assert len(set(HELD_OUT)) >= 40
    assert set(standard_prompts()) == {"code", "prose", "enumeration"}
    assert training_prompts(0) == prompts != training_prompts(1)


def test_synthesis_is_deterministic_and_rows_differ(tmp_path: Path) -> None:
    first, again, other = written(tmp_path), written(tmp_path), written(tmp_path, batch=1)
    np.testing.assert_array_equal(first.tokens, again.tokens)
    np.testing.assert_array_equal(first.kinds, again.kinds)
    assert (first.tokens != other.tokens).any()
    assert first.tokens.dtype == np.uint16
    assert len({row.tobytes() for row in first.tokens}) == len(first.tokens)


def test_forced_tokens_and_turns(tmp_path: Path) -> None:
    text = written(tmp_path, rows=48)
    after = set()
    for tokens, kinds in zip(text.tokens.tolist(), text.kinds.tolist(), strict=True):
        assert tokens[:2] == [BEGIN, USER_MARK]
        assert kinds[:2] == [FORCED, FORCED]
        for i in range(1, len(tokens) - 1):
            if kinds[i] == USER and tokens[i] == END:
                assert (tokens[i + 1], kinds[i + 1]) == (ANSWER_MARK, FORCED)
            if kinds[i] == ANSWER and tokens[i] == END and kinds[i + 1] != OVER:
                assert kinds[i + 1] == FORCED
                after.add(tokens[i + 1])
    assert after == {USER_MARK, BEGIN}  # a second question, or another conversation
    assert {USER, ANSWER, FORCED} <= set(text.kinds.ravel().tolist())


@pytest.mark.parametrize("longest", [1, 3, 6])
def test_long_turns_are_cut(tmp_path: Path, longest: int) -> None:
    model = chat_model()
    plan = training_rows(model.tokenizer, options(tmp_path), batch=0, rows=24, vocab=tiny.VOCAB)
    text = synthesise(
        model.target, plan.scripts, length=48, seeds=row_seeds(0, 0, 24),
        temperatures=plan.temperatures, ends=[END], turn_tokens=longest,
    )  # fmt: skip
    cut = 0
    for tokens, kinds in zip(text.tokens.tolist(), text.kinds.tolist(), strict=True):
        run = 0
        for i, kind in enumerate(kinds):
            run = run + 1 if kind in (USER, ANSWER) else 0
            assert run <= longest
            if run == longest - 1 and i + 1 < len(kinds) and tokens[i] != END:
                cut += (tokens[i + 1], kinds[i + 1]) == (END, FORCED)
    assert cut > 20 or longest == 1


def test_a_given_start_is_completed_as_the_user() -> None:
    model = chat_model()
    form, scripts = ChatFormat.of(model.tokenizer), Scripts()
    for _ in range(8):
        scripts.add_begun(form, 1.0, [[9, 10], [11]], exchanges=2)
    text = synthesise(
        model.target, scripts, length=400, seeds=row_seeds(0, 0, 8),
        temperatures=np.ones(8, np.float32), ends=[END], turn_tokens=20,
    )  # fmt: skip
    for tokens, kinds in zip(text.tokens.tolist(), text.kinds.tolist(), strict=True):
        assert tokens[:4] == [BEGIN, USER_MARK, 9, 10]
        assert kinds[:5] == [FORCED] * 4 + [USER]
        written = "".join("FUAO"[kind] for kind in kinds)
        while "UU" in written or "AA" in written:
            written = written.replace("UU", "U").replace("AA", "A")
        starts = [i for i, token in enumerate(tokens) if token == BEGIN and kinds[i] == FORCED]
        assert len(starts) == 2
        assert tokens[starts[1] : starts[1] + 3] == [BEGIN, USER_MARK, 11]
        assert kinds[-1] == OVER
        assert [k for k in written if k in "UA"] == list("UAUAUAUA")


def test_parts_make_the_whole(tmp_path: Path) -> None:
    model = chat_model()
    texts = []
    for parts in (1, 2):
        given = options(tmp_path)
        corpus = Corpus(tmp_path / str(parts), model.target, model.tokenizer, given, "x")
        for part in reversed(range(parts)):
            corpus.write_part(3, 8, part, parts, lambda *_: None)
        assert len(list((tmp_path / str(parts)).iterdir())) == 3
        texts.append(corpus.training(3, 8, lambda *_: None))
    np.testing.assert_array_equal(texts[0].tokens, texts[1].tokens)
    np.testing.assert_array_equal(texts[0].kinds, texts[1].kinds)


def test_tokens_are_the_targets_own_choices(tmp_path: Path) -> None:
    """Teacher-forced logits with the rows' noise give back every free token."""
    model, text = chat_model(), written(tmp_path)
    tokens = mx.array(text.tokens.astype(np.uint32))
    logits = model.target.logits(model.target.hidden(tokens, [None, None]))
    at = mx.broadcast_to(mx.arange(tokens.shape[1])[None] + 1, tokens.shape)
    noise = gumbel(noise_keys(mx.array(text.seeds), at), mx.arange(tiny.VOCAB, dtype=mx.uint32))
    for kind in (USER, ANSWER):
        heat = np.where(kind == USER, 1.0, text.temperatures)[:, None, None]
        warm = heat > 0
        scores = np.array(logits) / np.where(warm, heat, 1.0) + np.array(noise) * warm
        chosen, free = scores.argmax(-1)[:, :-1], text.kinds[:, 1:] == kind
        assert free.any()
        assert (chosen == text.tokens[:, 1:])[free].all()


def test_a_row_is_over_after_its_last_answer() -> None:
    model = chat_model()
    form, scripts = ChatFormat.of(model.tokenizer), Scripts()
    for _ in range(8):
        scripts.add_answers(form, 1.0, [[9, 10]])
    text = synthesise(
        model.target, scripts, length=160, seeds=row_seeds(0, 0, 8),
        temperatures=np.ones(8, np.float32), ends=[END],
    )  # fmt: skip
    ended = 0
    for tokens, kinds in zip(text.tokens, text.kinds, strict=True):
        assert tokens[:6].tolist() == [BEGIN, USER_MARK, 9, 10, END, ANSWER_MARK]
        answer = tokens[kinds == ANSWER].tolist()
        assert END not in answer[:-1]
        ended += answer[-1] == END
        assert (kinds[6 + len(answer) :] == OVER).all()
    assert ended


def test_plain_models_continue_texts(tmp_path: Path) -> None:
    tokenizer = tiny.LetterTokenizer()
    plan = training_rows(tokenizer, options(tmp_path), batch=0, rows=6, vocab=tiny.VOCAB)
    assert set(plan.labels) == {"plain"}
    held = evaluation_rows(tokenizer, options(tmp_path), vocab=tiny.VOCAB)
    assert set(held.labels) == {"plain"}


def test_prompt_files(tmp_path: Path) -> None:
    lines = tmp_path / "a.txt"
    lines.write_text("one\n\n two \n")
    assert read_prompts(lines) == ["one", "two"]
    objects = tmp_path / "a.jsonl"
    objects.write_text('"x"\n{"prompt": "y"}\n{"text": "z"}\n')
    assert read_prompts(objects) == ["x", "y", "z"]
    objects.write_text('{"question": 1}\n')
    with pytest.raises(ConfigError, match="line 1 has no prompt"):
        read_prompts(objects)
    own = tmp_path / "own.txt"
    own.write_text("\n".join(f"prompt {i}" for i in range(40)))
    given = options(tmp_path, prompts=own)
    plan = training_rows(ChatTokenizer(), given, batch=0, rows=24, vocab=tiny.VOCAB)
    assert set(plan.labels) == {"self", "begun", "own", "ours"}
    held = evaluation_rows(ChatTokenizer(), given, vocab=tiny.VOCAB)
    assert held.labels.count("own") == 2 * 3
