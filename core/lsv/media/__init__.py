"""Images, audio and video of a request: content parts, records, the seams to families and to what decodes."""
