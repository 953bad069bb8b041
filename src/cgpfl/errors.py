"""The one exception a user's mistake ends in."""


class UserError(Exception):
    """A mistake a user can mend: one sentence naming the key or file, the value and what would be valid."""
