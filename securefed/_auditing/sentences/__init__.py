"""The sentences of the report, the terminal, the comparison and the advice: one table, each sentence written once."""
