"""When each token was drafted, sent, awaited and decided: intervals, a trace, a picture."""
