"""How lsv-demo sees and hears: what an image, a sound or a video clip becomes before the tower's layers."""
