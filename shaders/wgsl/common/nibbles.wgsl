// Eight nibbles of a word, lowest first, for four row groups at once.

fn nibbles(q: vec4u) -> Eight {
    return Eight(
        vec4f(q & vec4u(15u)), vec4f((q >> vec4u(4u)) & vec4u(15u)),
        vec4f((q >> vec4u(8u)) & vec4u(15u)), vec4f((q >> vec4u(12u)) & vec4u(15u)),
        vec4f((q >> vec4u(16u)) & vec4u(15u)), vec4f((q >> vec4u(20u)) & vec4u(15u)),
        vec4f((q >> vec4u(24u)) & vec4u(15u)), vec4f(q >> vec4u(28u)),
    );
}
