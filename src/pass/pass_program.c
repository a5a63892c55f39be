/* pass: the order of units, for the pass itself and for who reckons beforehand what it will do. */
#include <config.h>

#include "pass/pass.h"

static void add(int *opt_program, int *n, int first, int count, int by)
{
    for (int i = 0; i < count; i++, (*n)++)
        if (opt_program != NULL)
            opt_program[*n] = first + i * by;
}

int az_pass_list_program(int *opt_program, const az_pass_units *units, bool training)
{
    const int layer0 = units->n_embed, norm = layer0 + units->n_layers,
              head = units->tied ? 0 : norm + 1;
    int n = 0;
    add(opt_program, &n, 0, units->n_embed, 1);
    add(opt_program, &n, layer0, units->n_layers, 1);
    add(opt_program, &n, norm, 1, 1);
    add(opt_program, &n, head, units->n_head, 1);
    if (!training)
        return n;
    if (units->n_head > 1)
        add(opt_program, &n, head, units->n_head, 1);
    if (units->lowest >= 0)
        add(opt_program, &n, norm - 1, units->n_layers - units->lowest, -1);
    return n;
}
