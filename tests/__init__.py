from tests import typechecked as typechecked  # named by pytest's --jaxtyping-packages
