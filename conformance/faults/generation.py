"""The generation loop."""

from __future__ import annotations

from conformance.faults import plant
from conformance.twin import Twin


@plant("loop", "greedy.tokens[1x5-cached]", mend="Take the first new token from the prefill's own logits.")
class LastPromptTokenTwice(Twin):
    """After the prefill the last prompt token is fed once more."""

    def cache_for(self, model, input_ids, max_new_tokens):
        self.first = input_ids.shape[1] + 1
        return super().cache_for(model, input_ids, max_new_tokens)

    def next_fed(self, ids, token):
        return ids[:, -2:] if ids.shape[1] == self.first else super().next_fed(ids, token)


class RoomyCache(Twin):
    def cache_for(self, model, input_ids, max_new_tokens):
        return self.init_cache(model, len(input_ids), 32 * model.config.n_positions)

    def positions(self, past, new, config):
        return super().positions(past, new, config) % config.n_positions


@plant("loop", "greedy.tokens[1x13-cached]", mend="Feed the cache the newest token only.")
class WholeSequenceFedAgain(RoomyCache):
    """The whole sequence is fed into a cache that already holds it."""

    def next_fed(self, ids, token):
        return ids


@plant("loop", "greedy.tokens[3x7-cached]", mend="Read the next token from the last position: logits[:, -1].")
class LogitsOfTheFirstPosition(Twin):
    """The next token is read from the first position of what was fed."""

    def last(self, logits):
        return logits[:, 0]


@plant("loop", "greedy.tokens[1x5-uncached]", mend="Feed the whole sequence when there is no cache.")
class UncachedSeesOneToken(Twin):
    """Without a cache only the last token is fed."""

    def refed(self, ids):
        return ids[:, -1:]


@plant("loop", "greedy.tokens[1x1-uncached]", mend="Crop nothing that fits into n_positions.")
class UncachedLosesTheFirst(Twin):
    """Without a cache the sequence is cropped to its last ten tokens."""

    def refed(self, ids):
        return ids[:, -10:]


@plant("loop", "greedy.no_new_tokens[cached]", mend="Return the prompt when max_new_tokens is 0.")
class AtLeastOneToken(Twin):
    """A token is generated even when none is asked for."""

    def generate(self, model, input_ids, max_new_tokens, **arguments):
        return super().generate(model, input_ids, max(1, max_new_tokens), **arguments)


@plant(
    "loop",
    "greedy.one_new_token[uncached]",
    mend="Generate max_new_tokens tokens, the prefill's prediction being the first.",
)
class OneTokenTooFew(Twin):
    """The prompt's own prediction is counted as a step of the loop that follows."""

    def generate(self, model, input_ids, max_new_tokens, **arguments):
        return super().generate(model, input_ids, max(0, max_new_tokens - 1), **arguments)


@plant(
    "loop",
    "greedy.up_to_n_positions[cached]",
    raises=True,
    mend="Accept prompt and new tokens up to n_positions together.",
)
class OnePositionUnused(Twin):
    """Prompt and new tokens have to stay below n_positions."""

    def check_room(self, model, total):
        super().check_room(model, total + 1)


@plant("loop", "greedy.twice[cached]", mend="Start each generation with an empty cache.")
class SecondGenerationStale(RoomyCache):
    """generate keeps its cache, with its length, for the next call."""

    def cache_for(self, model, input_ids, max_new_tokens):
        if not hasattr(model, "kept"):
            model.kept = super().cache_for(model, input_ids, max_new_tokens)
        return model.kept


@plant("loop", "greedy.stop_token[uncached]", mend="End when every row has stopped, not when one has.")
class FirstRowStopsAll(Twin):
    """The whole batch ends when one row has stopped."""

    def finished(self, stopped):
        return bool(stopped.any())


@plant("loop", "greedy.stop_token[cached]", mend="Fill a stopped row up with the stop token.")
class StoppedRowsGoOn(Twin):
    """A row that has stopped goes on with new tokens."""

    def stop(self, token, stopped, stop_token):
        return token
