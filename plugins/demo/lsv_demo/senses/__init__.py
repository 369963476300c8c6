"""How lsv-demo sees and hears: made-up pictures, sounds and clips, questions about them, and what its tower takes."""
