"""C++ types in mangled names: what is read is spelled as C++ does, and what is not known is refused."""

from __future__ import annotations

import pytest

from atomr_trio._values.cpp_types import Unreadable, function_type_of, integers_of, parameters_of, spelled, unqualified

SPELLED = {
    "_Z1kv": [],
    "_Z1kPfi": ["float *", "int"],
    "_ZL1kPKdm": ["const double *", "unsigned long"],
    "_ZN2ns5inner1kEPVKh": ["const volatile unsigned char *"],
    "_Z1kPrKf": ["const float *"],
    "_Z1kPPKcPKPc": ["const char **", "char *const *"],
    "_Z1kPA4_f": ["float (*)[4]"],
    "_Z1kPA4_A2_i": ["int (*)[4][2]"],
    "_Z1kPFvifE": ["void (*)(int, float)"],
    "_Z1kPFvvE": ["void (*)()"],
    "_Z1kPDoFivE": ["int (*)()"],
    "_Z1kDsDiDu": ["char16_t", "char32_t", "char8_t"],
    "_Z1k4BodyPS_": ["Body", "Body *"],
    "_Z1kP4BodyS0_": ["Body *", "Body *"],
    "_Z1kPKN2ns4BodyES2_": ["const ns::Body *", "const ns::Body *"],
    "_Z1kN4cuda3std3__47complexIfEE": ["cuda::std::complex<float>"],
    "_Z1kSt7complexIdE": ["std::complex<double>"],
    "_Z1kNSt3__17complexIfEE": ["std::complex<float>"],
    "_Z1k3VecIfLi4EE": ["Vec<float, 4>"],
    "_Z1k3VecIfLin4EE": ["Vec<float, -4>"],
    "_Z1k3VecILb1EE": ["Vec<1>"],
    "_Z1k4PackIJifPdEE": ["Pack<int, float, double *>"],
    "_Z1kN3VecIiE5InnerE": ["Vec<int>::Inner"],
    "_Z1k3VecIiES_IfE": ["Vec<int>", "Vec<float>"],
    "_Z1k3AbiB5cxx11": ["Abi"],
    "_Z1kN12_GLOBAL__N_14BodyE": ["(anonymous namespace)::Body"],
    "_Z1kno": ["__int128", "unsigned __int128"],
}


@pytest.mark.parametrize(("mangled", "types"), SPELLED.items())
def test_the_parameters_of_a_function_are_spelled_as_cpp_does(mangled: str, types: list[str]) -> None:
    assert [spelled(each) for each in parameters_of(mangled)] == types


UNREADABLE = {
    "no mangled name": "k",
    "nothing behind the name": "_Z1k",
    "a name that is cut off": "_Z9k",
    "a name without a length": "_Zk",
    "void among others": "_Z1kiv",
    "a reference": "_Z1kRi",
    "a null pointer's type": "_Z1kDn",
    "a type that is not known": "_Z1kQi",
    "a long double": "_Z1ke",
    "a component that was not seen": "_Z1kS_",
    "a later component that was not seen": "_Z1kPfS4_",
    "an array without a length": "_Z1kPA_f",
    "noexcept of what is no function": "_Z1kPDoi",
    "a nested name that does not end": "_Z1kN2ns4Body",
    "a nested name of nothing": "_Z1kNE",
    "std in the middle": "_Z1kN2nsSt4BodyE",
    "a component in the middle": "_Z1k1AN2nsS_1BE",
    "arguments of nothing": "_Z1kNIfEE",
    "arguments of a builtin type": "_Z1kPfS_IiE",
    "arguments twice": "_Z1k3VecIfEIiE",
    "a member of a pointer": "_Z1kPfNS_4BodyE",
    "a literal of nothing": "_Z1k3VecILiEE",
    "too deep": f"_Z1k{'P' * 99}f",
    "text behind the end": "_Z1kiE",
}


@pytest.mark.parametrize("mangled", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_type_that_is_not_known_is_refused(mangled: str) -> None:
    with pytest.raises(Unreadable):
        parameters_of(mangled)


def test_the_type_of_a_kernel_is_read_from_the_instance_of_a_template() -> None:
    first, second = function_type_of("_Z4typeIPFvPKfiEEvv", "type")
    assert (spelled(first), spelled(second)) == ("const float *", "int")
    assert function_type_of("_Z4typeIPFvvEEvv", "type") == ()
    assert spelled(unqualified(parameters_of("_Z1kPKf")[0].target)) == "float"  # type: ignore[union-attr]
    for wrong in ("_Z4typeIiEvv", "_Z4typeIPFivEEvv", "_Z4typeIPFviEE", "_Z5otherIPFviEEvv", "_Z4typeIPFviEEvvi"):
        with pytest.raises(Unreadable):
            function_type_of(wrong, "type")


def test_numbers_are_read_from_the_instance_of_a_template() -> None:
    assert integers_of("_Z4typeI7numbersIJLi4ELin1ELi16EEEEvv", "type", "numbers") == (4, -1, 16)
    assert integers_of("_Z4typeI7numbersIJEEEvv", "type", "numbers") == ()
    for wrong in ("_Z4typeI7numbersIJiEEEvv", "_Z4typeI5otherIJEEEvv", "_Z4typeI7numbersIJLi4EEE"):
        with pytest.raises(Unreadable):
            integers_of(wrong, "type", "numbers")
