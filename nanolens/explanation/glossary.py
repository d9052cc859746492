"""The words of training, each in a few sentences (glossary.md); with a run at hand, in that run's own numbers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import numpy as np

from nanolens.config.fields import as_text, settings
from nanolens.errors import fault
from nanolens.facts import sentences
from nanolens.facts.case import Case
from nanolens.message import Message, msg


@dataclass(frozen=True)
class Term:
    name: str
    title: Message
    meaning: tuple[Message, ...]
    also: tuple[str, ...] = ()  # other names that people type
    see: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()  # that a run answers it with; else one of the same name
    here: tuple[Message, ...] = ()  # what it is in the run at hand


def look_up(word: str, case: Case | None = None) -> Term:
    term = term_named(word)
    if term is None:
        near = nearest(word)
        raise fault(
            msg("the glossary has no term {word:code}", word),
            fix=msg("did you mean {nearest:code}?", near) if near else msg("the terms are: {terms:code}", names()),
        )
    return term if case is None else replace(term, here=tuple(each for each in _here(term, case) if each))


def names() -> list[str]:
    return [term.name for term in terms()]


def term_named(word: str) -> Term | None:
    """By name or another name of it; a setting of a run is a term too."""
    plain = _plain(word)
    for term in terms():
        if plain in map(_plain, (term.name, *term.also)):
            return term
    setting = {_plain(name): setting for name, setting in settings().items()}.get(plain)
    if setting is None:
        return None
    default = msg("A setting of a run; its default is {default:code}.", as_text(setting.default))
    return Term(setting.name, msg("{name:code}: {meaning}", setting.name, setting.meaning), (default,))


def nearest(word: str) -> str | None:
    spellings = {_plain(name): term.name for term in terms() for name in (term.name, *term.also)}
    spellings |= {_plain(name): name for name in settings()}
    near = difflib.get_close_matches(_plain(word), spellings, n=1, cutoff=0.6)
    return spellings[near[0]] if near else None


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())


# --- the text

LISTS = ("Also: ", "See: ", "Settings: ")


@cache
def terms() -> tuple[Term, ...]:
    return parse_terms(files("nanolens.explanation").joinpath("glossary.md").read_text(encoding="utf-8"))


def parse_terms(text: str) -> tuple[Term, ...]:
    """`## name`, a title in bold, paragraphs, and the lists "Also:" (other names), "See:" and "Settings:"."""
    return tuple(map(_term, re.split(r"^## ", text, flags=re.MULTILINE)[1:]))


def _term(section: str) -> Term:
    body = re.sub(r"^# .*$", "", section, flags=re.MULTILINE)  # the heading of the next part
    name, title, *blocks = (" ".join(block.split()) for block in body.split("\n\n") if block.strip())
    lists = dict(block.split(": ", 1) for block in blocks if block.startswith(LISTS))
    meaning = tuple(Message(block) for block in blocks if not block.startswith(LISTS))
    also, see, keys = (tuple(lists[each[:-2]].split(", ")) if each[:-2] in lists else () for each in LISTS)
    return Term(name, Message(title.strip("*")), meaning, also, see, keys)


# --- in the numbers of a run

Words = Iterator[Message | None]  # nothing where the run says nothing of it


def _here(term: Term, case: Case) -> Words:
    """First the terms that losses answer."""
    (loss_steps, losses), (val_steps, vals), course = case.losses, case.vals, sentences.course_words(case)
    latest = next((float(values[-1]) for values in (vals, losses) if len(values)), None)
    match term.name:
        case "loss" | "ln_v" | "unigram":
            if term.name == "loss" and len(losses):
                last, step = float(losses[-1]), int(loss_steps[-1])
                yield msg("In this run: {loss:nats} at update {step:count}, the last one logged.", last, step)
            yield None if case.is_vocab_guessed else sentences.landmark_words(case)
            yield sentences.start_words(case)
        case "val_loss" | "overfitting" | "underfitting":
            for i in case.both_splits[case.evals.step[case.both_splits] > 0][-1:] if term.name != "val_loss" else ():
                yield sentences.gap_words(case, int(i))
            if course is not None and course[0]:
                yield msg("In this run: {val:nats} at step {step:count}.", float(vals[-1]), int(val_steps[-1]))
            yield None if course is None else course[1]
        case "perplexity":
            yield None if latest is None else sentences.perplexity_words(latest)
        case "bits_per_byte" if latest is not None:
            yield sentences.units_words(case, latest)
            if sentences.bits_per_byte(case, latest) is None:
                yield msg(
                    "Not known for this run, because the number of bytes per token is not known. Give {option:code}.",
                    "--bytes_per_token=N",
                )
        case "standard_error" if (noise := case.eval_noise) is not None:
            yield msg("In this run: about {noise:nats} for one evaluation ({how}).", noise.value, noise.how)
        case _:
            yield from _amounts(term, case)


def _amounts(term: Term, case: Case) -> Words:
    """Terms that the run's steps, tokens and parameters answer."""
    last, end = case.last_step, case.whole("max_iters")
    match term.name:
        case "step" if end:
            yield msg("This run: {step:count} of {end:count}.", last, end)
        case "step" if last:
            yield msg("This run: {step:count} so far.", last)
        case "epoch":
            if last and (seen := sentences.seen_words(case, last)) is not None:
                yield msg("In this run, at step {step:count}: {seen}", last, seen)
                yield sentences.epochs_words(case, last) if case.dataset_tokens is None else None
        case "token":
            if (vocab := case.vocab_size) is not None:
                yield msg("In this run: {vocab:count} different tokens ({how}).", vocab.value, vocab.how)
            if per_token := case.number("bytes_per_token"):
                yield msg("A token is {bytes:about} bytes on average.", per_token)
        case "tokens_per_update" | "gradient_accumulation" | "critical_batch":
            yield sentences.tokens_per_update_words(case)
        case "tokens_per_parameter" | "scaling_law":
            yield sentences.per_parameter_words(case, last)
        case "parameters":
            yield sentences.model_words(case)
            if case.counted is not None:
                yield msg("Counted exactly: {total:count}.", case.counted.total)
        case "learning_rate" | "warmup" | "cosine" | "wsd" | "plateau":
            if case.schedule is not None:
                yield sentences.schedule_words(case.schedule)
            if last and (lr := case.lr_at(last)) is not None:
                yield msg("At step {step:count} it is {lr:rate}.", last, lr)
        case _:
            yield from _measured(term, case)


def _measured(term: Term, case: Case) -> Words:
    """Terms that columns of the record answer, and last those that settings do."""
    clipped, norms, printed_mfu, memory = (
        column[np.isfinite(column)]
        for column in (case.steps.clipped, case.steps.grad_norm, case.steps.mfu_frac, case.steps.memory_bytes)
    )
    clip, took = case.number("grad_clip"), case.step_time.value if case.step_time is not None else 0.0
    match term.name:
        case "gradient_norm" if len(norms):
            low, mid, high = (float(each) for each in np.percentile(norms, [5, 50, 95]))
            yield msg("In this run: median {middle:about}, 90% between {low:about} and {high:about}.", mid, low, high)
        case "clipping" if len(clipped):
            yield msg("In this run {share:share} of the updates were clipped.", float(clipped.mean()))
        case "clipping" if len(norms) and clip:
            share = float((norms > clip).mean())
            yield msg(
                "In this run {share:share} of the gradient norms are above grad_clip = {clip:number}.", share, clip
            )
        case "flops":
            yield sentences.flops_words(case)
            yield sentences.compute_words(case, case.last_step)
        case "mfu" | "hfu":
            if len(printed_mfu):
                yield sentences.printed_mfu_words(case, float(np.median(printed_mfu)), took)
            yield sentences.achieved_words(case, took)
        case "tokens_per_s" if case.step_time is not None:
            yield sentences.speed_words(case, took)
        case "memory":
            yield sentences.memory_words(case)
            if len(memory):
                yield msg("Measured: peak {measured:bytes}.", float(memory.max()))
        case _:
            for key in term.settings or (term.name,):
                if key in (*settings(), "devices") and (value := case.get(key)) is not None:
                    yield msg("In this run: {key:code} = {value:code}.", key, value)
