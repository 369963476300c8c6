"""The paged KV cache as bookkeeping: blocks, reference counts, prefix hashes. Knows no tensor."""
