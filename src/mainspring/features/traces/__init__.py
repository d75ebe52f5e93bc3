"""What a run was, seen from outside: traces, spans, metrics and replays, all read off its log."""
