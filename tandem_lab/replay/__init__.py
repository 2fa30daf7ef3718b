"""Questions over a link that changes as a trace says: what became of every token, as a record, a table, a picture."""
