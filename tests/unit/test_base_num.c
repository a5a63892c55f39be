/* base: f16 and bf16 over all patterns, rounding; Philox against its published vectors; hashes. */
#include <config.h>

#include "base_util.h"

#include <math.h>

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* The value of a format with these field widths, from its definition. */
static double value_of(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, e = (int)(bits >> mantissa_bits) & (2 * bias + 1);
    double m = bits & ((1u << mantissa_bits) - 1), sign = bits >> 15 ? -1 : 1;
    if (e == 2 * bias + 1)
        return m != 0 ? NAN : sign * INFINITY;
    if (e == 0)
        return sign * ldexp(m, 1 - bias - mantissa_bits);
    return sign * ldexp(m + (1 << mantissa_bits), e - bias - mantissa_bits);
}

static uint16_t to_half(float x)
{
    return az_f32_to_f16(x).bits;
}

static uint16_t to_bf16(float x)
{
    return az_f32_to_bf16(x).bits;
}

/* All 65536 patterns: widening is the definition, narrowing gives the pattern back, NaN stays
 * NaN. */
static void all_patterns(int exponent_bits, float (*widen)(uint16_t), uint16_t (*narrow)(float))
{
    int mantissa_bits = 15 - exponent_bits;
    for (uint32_t u = 0; u < 65536; u++) {
        double want = value_of(u, exponent_bits, mantissa_bits);
        float got = widen((uint16_t)u);
        uint16_t back = narrow(got);
        if (isnan(want)) {
            assert_true(isnan(got));
            assert_true(isnan(value_of(back, exponent_bits, mantissa_bits)));
        } else {
            assert_true((double)got == want);
            assert_int_equal(bits_of(got) >> 31, u >> 15); /* -0 too */
            assert_int_equal(back, u);
        }
    }
}

/* Between each two finite neighbours: the middle goes to the even one, what lies beside it to the
 * nearer one. */
static void ties(int exponent_bits, float (*widen)(uint16_t), uint16_t (*narrow)(float))
{
    uint32_t infinity = (uint32_t)((1 << exponent_bits) - 1) << (15 - exponent_bits);
    for (uint32_t sign = 0; sign < 2; sign++)
        for (uint32_t u = 0; u + 1 < infinity; u++) {
            uint16_t lo = (uint16_t)(u | sign << 15), hi = (uint16_t)(lo + 1);
            double a = widen(lo), b = widen(hi);
            float middle = (float)((a + b) / 2);
            if ((double)middle != (a + b) / 2)
                continue; /* below f32's own subnormals */
            assert_int_equal(narrow(middle), u % 2 == 0 ? lo : hi);
            assert_int_equal(narrow(nextafterf(middle, (float)a)), lo);
            assert_int_equal(narrow(nextafterf(middle, (float)b)), hi);
        }
}

static float widen_half(uint16_t u)
{
    return az_f16_to_f32((az_f16){u});
}

static float widen_bf16(uint16_t u)
{
    return az_bf16_to_f32((az_bf16){u});
}

static void f16(void **state)
{
    (void)state;
    all_patterns(5, widen_half, to_half);
    ties(5, widen_half, to_half);
    assert_int_equal(to_half(65504.0f), 0x7bff);
    assert_int_equal(to_half(65519.996f), 0x7bff);
    assert_int_equal(to_half(65520.0f), 0x7c00); /* the middle above the largest is infinite */
    assert_int_equal(to_half(-1e30f), 0xfc00);
    assert_int_equal(to_half(INFINITY), 0x7c00);
    assert_int_equal(to_half(0x1p-25f), 0);
    assert_int_equal(to_half(nextafterf(0x1p-25f, 1)), 1);
    assert_int_equal(to_half(-1e-30f), 0x8000);
}

static void bf16(void **state)
{
    (void)state;
    all_patterns(8, widen_bf16, to_bf16);
    ties(8, widen_bf16, to_bf16);
    assert_int_equal(to_bf16(3.4028235e38f), 0x7f80); /* FLT_MAX rounds to infinity */
    assert_int_equal(to_bf16(INFINITY), 0x7f80);
    uint32_t low_nan = 0x7f800001; /* its upper half alone would be infinity */
    float f;
    memcpy(&f, &low_nan, 4);
    assert_true(isnan(widen_bf16(to_bf16(f))));
}

static void widening_arrays(void **state)
{
    (void)state;
    const az_f16 h[] = {{0x3c00}, {0xc000}, {0x0001}};
    const az_bf16 b[] = {{0x3f80}, {0xc000}, {0x0001}};
    const float f[] = {1, -2, 3};
    float out[3];
    az_widen(out, f, AZ_F32, 3);
    assert_memory_equal(out, f, sizeof f);
    az_widen(out, h, AZ_F16, 3);
    assert_true(out[0] == 1 && out[1] == -2 && out[2] == 0x1p-24f);
    az_widen(out, b, AZ_BF16, 3);
    assert_true(out[0] == 1 && out[1] == -2 && bits_of(out[2]) == 0x10000);
    assert_int_equal(az_dtype_bytes(AZ_F32), 4);
    assert_int_equal(az_dtype_bytes(AZ_BF16), 2);
    assert_string_equal(az_dtype_name(AZ_F32), "F32");
    assert_string_equal(az_dtype_name(AZ_F16), "F16");
    assert_string_equal(az_dtype_name(AZ_BF16), "BF16");
    assert_int_equal(az_ceil_div(7, 3), 3);
    assert_int_equal(az_ceil_div(6, 3), 2);
    assert_int_equal(az_min_i64(-1, 2), -1);
    assert_int_equal(az_max_i64(-1, 2), 2);
}

/* The known-answer vectors of Random123 for philox4x32-10. */
static void philox(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        const uint32_t *c = vectors[i].counter;
        uint32_t out[4];
        az_philox(out, vectors[i].key[0] | (uint64_t)vectors[i].key[1] << 32, c[0], c[1], c[2],
                  c[3]);
        assert_memory_equal(out, vectors[i].out, sizeof out);
    }
    assert_int_equal(az_rng_word(AZ_RNG_INIT, 0), AZ_RNG_INIT);
    assert_int_equal(az_rng_word(AZ_RNG_DROPOUT, 7), AZ_RNG_DROPOUT | 7 << 8);
}

/* Unit values lie in [0, 1); normal values have mean 0, variance 1 and no correlation within five
 * standard errors. */
static void distributions(void **state)
{
    (void)state;
    assert_true(az_u32_to_unit(0) == 0);
    assert_true(az_u32_to_unit(0xffffffff) < 1);
    assert_true(az_u32_to_unit(0x80000000) == 0.5f);
    double sum = 0, squares = 0, products = 0, units = 0;
    enum { N = 100000 };
    for (uint32_t i = 0; i < N; i++) {
        uint32_t u[4];
        double z[2];
        az_philox(u, 1, i, 0, 0, 0);
        az_u32_to_normal(z, u[0], u[1]);
        sum += z[0] + z[1];
        squares += z[0] * z[0] + z[1] * z[1];
        products += z[0] * z[1];
        units += (double)az_u32_to_unit(u[2]);
    }
    assert_true(fabs(sum / (2 * N)) <= 5 / sqrt(2.0 * N));
    assert_true(fabs(squares / (2 * N) - 1) <= 5 * sqrt(2.0 / (2 * N)));
    assert_true(fabs(products / N) <= 5 / sqrt((double)N));
    assert_true(fabs(units / N - 0.5) <= 5 * sqrt(1.0 / 12 / N));
    double z[2];
    az_u32_to_normal(z, 0, 0);
    assert_true(isfinite(z[0]) && isfinite(z[1]));
    az_u32_to_normal(z, 0xffffffff, 0xffffffff);
    assert_true(isfinite(z[0]) && isfinite(z[1]));
}

static void hashes(void **state)
{
    (void)state;
    assert_true(az_hash64("", 0, 0) == 0x2d06800538d394c2u); /* XXH3 of nothing */
    assert_true(az_hash64("abc", 3, 0) != az_hash64("abc", 3, 1));
    assert_true(az_hash64("abc", 3, 0) != az_hash64("abd", 3, 0));
}

/* Sizes, speeds and rates with a unit behind them. */
static void units(void **state)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {{"24GiB", (int64_t)24 << 30},
                 {"512 MB", 512000000},
                 {"1000", 1000},
                 {"1.5 KiB", 1536},
                 {"2TB", 2000000000000},
                 {"7 B", 7},
                 {"0", 0},
                 {".5kB", 500}};
    static const char *const wrong[] = {"",       "GiB",    "-1",  "24G",         "24 gib", "1e",
                                        "1GiB/s", "1 GiB ", "nan", "99999999TiB", "0x10",   "+5"};
    int64_t bytes;
    double v;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_true(az_parse_size(&bytes, sizes[i].text));
        assert_true(bytes == sizes[i].bytes);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(az_parse_size(&bytes, wrong[i]));
    assert_true(az_parse_speed(&v, "10Gbit/s") && v == 1.25e9);
    assert_true(az_parse_speed(&v, "25 GB/s") && v == 25e9);
    assert_true(az_parse_speed(&v, "1MiB/s") && v == 1048576);
    assert_false(az_parse_speed(&v, "10Gbit"));
    assert_false(az_parse_speed(&v, "10"));
    assert_false(az_parse_speed(&v, "/s"));
    assert_false(az_parse_speed(&v, "0MB/s"));
    assert_false(az_parse_speed(&v, "1e-300B/s"));
    assert_false(az_parse_speed(&v, "1e299TB/s"));
    assert_true(az_parse_rate(&v, "1.5e12") && v == 1.5e12);
    assert_true(az_parse_rate(&v, "300GFLOP/s") && v == 300e9);
    assert_true(az_parse_rate(&v, "2 TFLOPS") && v == 2e12);
    assert_true(az_parse_rate(&v, "3G") && v == 3e9);
    assert_false(az_parse_rate(&v, "fast"));
    assert_false(az_parse_rate(&v, "3X"));
    assert_false(az_parse_rate(&v, "0"));
    assert_true(az_limits_get_reserve((int64_t)1 << 30) == (int64_t)128 << 20);
    assert_true(az_limits_get_reserve((int64_t)100 << 30) == (int64_t)5 << 30);
    assert_true(az_limits_get_reserve(INT64_MAX) == (int64_t)8 << 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16),
        cmocka_unit_test(bf16),
        cmocka_unit_test(widening_arrays),
        cmocka_unit_test(philox),
        cmocka_unit_test(distributions),
        cmocka_unit_test(hashes),
        cmocka_unit_test(units),
    };
    return cmocka_run_group_tests_name("base numbers", tests, NULL, NULL) != 0;
}
