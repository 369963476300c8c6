"""What emulations of devices are made of: strict fakes of vendors' libraries, streams, and where tensors are."""
