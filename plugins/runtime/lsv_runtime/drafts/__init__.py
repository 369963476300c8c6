"""Drafts: tokens that are proposed cheaply, and verified beside the one they would follow."""
