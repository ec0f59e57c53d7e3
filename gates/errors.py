"""What gates refuse, each with a code and words that say what to do."""

from __future__ import annotations


class GateError(Exception):
    """Base of what this room refuses; `str(error)` is safe to show."""

    code = "gate_refused"


class RoleRefused(GateError):
    """The connection's role may not do this."""

    code = "role_refused"


class SignatureRefused(GateError):
    """A signature does not verify, is by nobody who may sign, or is over something else."""

    code = "signature_refused"


class ReviewersRefused(GateError):
    """A reviewer set that is malformed, or may not be put in force this way."""

    code = "reviewers_refused"


class BaselineRefused(GateError):
    """A baseline that cannot be proposed, or has drifted from what was frozen."""

    code = "baseline_refused"


class BundleRefused(GateError):
    """An evidence bundle that does not hold together."""

    code = "bundle_refused"


class TokenRefused(GateError):
    """A token that is unknown, revoked or malformed."""

    code = "token_refused"
