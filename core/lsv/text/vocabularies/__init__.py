"""Files of vocabularies that are read without the libraries that wrote them."""
