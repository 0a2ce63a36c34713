"""The papers' tables and figures beside ours: experiments by paper, and the ledger that runs and judges them."""
