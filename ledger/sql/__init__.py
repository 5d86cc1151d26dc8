"""SQL that ships with the ledger."""
