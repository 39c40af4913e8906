// Sum over the 64 threads of a workgroup, as a tree in workgroup memory. Every thread must come.

const ROW_WG: u32 = 64u;
var<workgroup> row_terms: array<f32, 64>;

fn row_sum(local: u32, own: f32) -> f32 {
    row_terms[local] = own;
    workgroupBarrier();
    for (var half = ROW_WG / 2u; half > 0u; half /= 2u) {
        if (local < half) {
            row_terms[local] += row_terms[local + half];
        }
        workgroupBarrier();
    }
    return row_terms[0];
}
