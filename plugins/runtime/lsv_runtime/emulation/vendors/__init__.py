"""For strict fakes of vendors' libraries: signatures kept as data, checks of arguments, attention in plain torch,
products with the fault of a real one."""
