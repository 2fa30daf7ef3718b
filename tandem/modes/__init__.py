"""The ways of working together: what each party does in a session, and the loop that every mode must agree with."""
