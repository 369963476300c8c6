"""Regular expressions of JSON schemas, as ECMA 262 reads them: trees, automata, and text for llguidance."""
