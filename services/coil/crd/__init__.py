"""The custom resources: frozen types, names, validation, schemas. Pure, and the bottom of the house."""
