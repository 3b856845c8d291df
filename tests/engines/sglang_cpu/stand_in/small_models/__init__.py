"""The models that our tests serve: named as SGLang's external package, they spare it importing all its others."""
