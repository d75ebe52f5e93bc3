"""What a record of the audit says, in words."""

from mainspring.engine.audit import AuditEntry

_VERDICTS = {"allow": "allowed", "deny": "denied", "ask": "a person is to be asked", "client": "handed to the client"}


def describe(entry: AuditEntry) -> str:
    """What happened, in words."""
    who = f" by {entry.subject}" if entry.subject else ""
    why = f": {entry.reason}" if entry.reason else ""
    match entry.what:
        case "judged":
            rule = "no rule spoke against it" if entry.policy == "gate" else f"the rule `{entry.policy}` decided"
            return f"{_VERDICTS.get(entry.outcome, entry.outcome)}, {rule}{why}"
        case "approval":
            return f"{entry.outcome}{who}{why}"
        case "flagged":
            return f"the input reads like orders to the model{why}"
        case "started":
            return "started"
        case "ended":
            return f"ended, {'with an error' if entry.outcome == 'error' else 'without error'}, after {entry.seconds:.3f} s"
        case "run_ended":
            return f"the run ended {entry.outcome}{why}"
        case "triggered":
            return f"{entry.outcome}{why}"
