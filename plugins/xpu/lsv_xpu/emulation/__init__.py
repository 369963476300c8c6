"""The platform without a GPU: strict fakes of the vendors' libraries."""
